"""The guard itself: broker, API, and the wiring of everything below."""
