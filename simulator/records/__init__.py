"""The arrays and records of a run. A new field is declared here with its unit; nothing here decides anything."""
