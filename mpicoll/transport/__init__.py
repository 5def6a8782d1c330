"""How it travels: operations as steps of MPI calls, and the engine that runs them."""
