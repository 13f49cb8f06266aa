"""Pages of results: one file of HTML, which needs no network."""
