/* MPI_Reduce_scatter_block of floats, for bench/collectives_mpi.sh: prints the best GB/s that a rank reads, one span of
   every rank's slot, as bench/collectives.cpp counts them.   reduce_scatter MEGABYTES ROUNDS */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  int rank, size;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const long span = ((argc > 1 ? atol(argv[1]) : 16) << 18) / size;
  const int rounds = argc > 2 ? atoi(argv[2]) : 50;
  float* slot = malloc((size_t)span * size * sizeof(float));
  float* sum = malloc((size_t)span * sizeof(float));
  for (long i = 0; i < span * size; ++i) slot[i] = (float)(i % 1000 + rank);
  for (long i = 0; i < span; ++i) sum[i] = 0;
  double best = 1e9;
  for (int i = 0; i < rounds; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    MPI_Reduce_scatter_block(slot, sum, (int)span, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    const double seconds = MPI_Wtime() - begin;
    if (seconds < best) best = seconds;
  }
  if (rank == 0) printf("%.2f\n", (double)span * size * sizeof(float) / best / 1e9);
  MPI_Finalize();
  return 0;
}
