"""What keeps it honest: the checks of arguments, and what happens when a rank fails."""
