"""RDMA devices, by libibverbs: InfiniBand, RoCE, and Linux's software RoCE (rxe).

What to open:

    verbs_backend                      transfers, and the connections of readers and owners
    devices                            which device and address are used, and how it reaches a
                                       GPU's memory
    library                            the used part of libibverbs; a fake:
                                       `monarch/testing/fake_verbs.py`
    pyverbs_library, ibverbs_library   libibverbs by two Python packages
    installed                          which of the two is installed
"""
