"""A model of every collective in plain numpy, in one process, that shares no code with mpicoll.

``dtypes`` names the element types, ``inputs`` makes what each rank brings (any rank can compute every rank's part),
``reduction`` says what a reduction of those parts is, ``collectives`` says which rank ends up with what.

Elements are kept as numpy void ("raw bytes") arrays of the element's size, so that a dtype that numpy does not know
(bfloat16, float8) is moved and compared like any other.
"""
