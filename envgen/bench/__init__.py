"""Try, load, measure and judge a server with the field's tools; keep the evidence. Extra: ``envgen[bench]``."""
