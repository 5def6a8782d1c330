"""The words users say. `mpicoll` itself exports them all."""
