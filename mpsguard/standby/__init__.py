"""Two processes of one program: what follows from what happens to them, and the desk between them and a supervisor."""
