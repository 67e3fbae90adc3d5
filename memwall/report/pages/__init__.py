"""A module for each page: what a report of one kind of result says, as a document."""
