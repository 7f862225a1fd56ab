"""Gateway side of a stream: admission, delivery, prompt rendering, and the care for streams that lost their owner."""
