"""The rows of the catalog, a file for each family."""
