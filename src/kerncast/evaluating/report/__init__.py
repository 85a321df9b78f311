"""The evaluation as a page, as charts and in a notebook."""
