"""FlashInfer's cache, from inside a container: the standard library only, Python 3.8 and later, never a traceback.

``envgen.inside.run`` sends these files; they import each other by their full names, and nothing else of envgen.
"""
