"""Messages of other programs, generated from the .proto files here by `scripts/generate-wire`."""
