"""The broker of a domain: public sockets, handshakes, parking, and the relay of each connection to a lane."""
