"""The half of the tensor engine that lives in the controller.

What to open:

    dispatch, operators            what happens to a torch operation; what is known of an operator
    propagation                    what a call does to shapes
    issuing                        one record of a batch
    client                         sending, frees, failures, flow control
    device_mesh, ambient           a mesh of workers; the active mesh and stream of a thread
    tensor                         the handle that a program holds
    collectives                    reductions, and copies between meshes
    streams                        tensors that pass from one stream to another
    recording                      operations that become one template
    handing                        tensors as arguments of endpoints
    refusals                       errors at issue
    remote_exception, tracebacks   errors from workers; where the user called an operation
"""
