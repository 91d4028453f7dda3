"""The only room that speaks to MongoDB."""
