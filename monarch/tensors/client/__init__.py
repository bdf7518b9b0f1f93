"""The half of the tensor engine that lives in the controller.

What to open:

    dispatch, operators            dispatch of torch operations; facts of each operator
    propagation                    the shapes of a call's results
    issuing                        one record of a batch
    client                         sending, frees, failures, flow control
    device_mesh, ambient           a mesh of workers; the active mesh and stream of a thread
    tensor                         the handle that a program has
    collectives                    reductions, and copies between meshes
    streams                        tensors that another stream borrows or takes over
    recording                      operations that become one template
    handing                        tensors as arguments of endpoints
    refusals                       errors at issue
    remote_exception, tracebacks   errors from workers; where the user called an operation
"""
