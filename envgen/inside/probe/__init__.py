"""The doctor's probe: facts about a container, collected by its own Python in one process, and one
JSON document.
"""
