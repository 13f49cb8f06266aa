"""Where convtime works inside of other programs."""
