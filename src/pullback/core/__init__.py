"""What an op is: element types, declarations, the catalog, problems."""
