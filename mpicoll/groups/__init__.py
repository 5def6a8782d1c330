"""Who takes part: process groups over communicators, and the world they live in."""
