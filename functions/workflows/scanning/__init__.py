"""What the compliance scan is made of, free of any workflow: reading, detecting, judging, reporting.

Read in this order: `reading` (bytes to passages), `detectors`, `scan` (one document), `risk`, `report`,
`llm`.
"""
