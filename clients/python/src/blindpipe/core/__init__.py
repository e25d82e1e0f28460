"""The parts that agents and people share: directories, files, sessions."""
