"""An incident put into words and pictures: pure functions from what was recorded to text."""
