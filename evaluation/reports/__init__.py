"""What a person looks at after a run: a Perfetto timeline, pictures, and one HTML page per run or comparison."""
