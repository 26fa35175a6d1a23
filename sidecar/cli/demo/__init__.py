"""The demo: every real part, started here on loopback, and what a person sees of it."""
