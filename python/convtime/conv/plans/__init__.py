"""Plans of convolutions: choosing them, their file, and using them in convtime's ops."""
