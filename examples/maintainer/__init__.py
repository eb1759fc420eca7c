"""A maintainer of a repository, with approvals."""
