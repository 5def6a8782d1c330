"""The MPI library underneath: how it is started, what it can do, and what launched the job."""
