"""Parts of fusion_fuzz: the architectures, and what sequences do with them."""
