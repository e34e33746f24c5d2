"""MPI in a library that was loaded for its caller only (RTLD_LOCAL), as languages with a foreign function interface do."""

import ctypes
import os

mpi = ctypes.CDLL("libmpi.so.40", mode=os.RTLD_LOCAL | os.RTLD_NOW)
mpi.MPI_Init(None, None)
world = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world")))
rank = ctypes.c_int(-1)
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
mpi.MPI_Barrier(world)
if rank.value == 0:
    print("PASS local", flush=True)
mpi.MPI_Finalize()
