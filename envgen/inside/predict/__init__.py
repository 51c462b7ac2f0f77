"""What a release of vLLM would choose: a program of several files, run by the image's own Python.

It only asks and collects. ``envgen/predict`` judges its answer on the host, and
``envgen/app/predict.py`` decides where it runs, and what `up` and `doctor` say of the judgement.
"""
