"""What a person looks at after a run: timelines for Perfetto, pictures, and one HTML page a run or comparison."""
