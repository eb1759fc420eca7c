"""A web service over the client."""
