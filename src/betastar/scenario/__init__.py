"""What was run (noise, rate, steps), one step of it, and who attacks."""
