"""The keys of sessions: what they seal, where they stand and move, and the erasure that deletes them."""
