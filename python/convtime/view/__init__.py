"""How results are shown: blocks, figures, and the text, HTML and Markdown made of them."""
