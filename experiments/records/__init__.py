"""What a run leaves behind: rows, manifest, and the folder that holds them; read back for everybody."""
