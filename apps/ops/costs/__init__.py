"""What the fleet's hours were used for, what they cost, and what would have cost less."""
