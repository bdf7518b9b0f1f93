"""RDMA devices, by libibverbs: InfiniBand, RoCE, and Linux's software RoCE (rxe).

What to open:

    verbs_backend                      transfers, and the connections of readers and owners
    devices                            which device and address are taken, and how it gets at a
                                       GPU's memory
    library                            what is used of libibverbs; a fake:
                                       `monarch/testing/fake_verbs.py`
    pyverbs_library, ibverbs_library   libibverbs by two Python packages
    installed                          which of the two is there
"""
