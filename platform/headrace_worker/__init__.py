"""One model replica: pulls streams from Redis, generates with an engine, appends to the token log. No Django."""
