/* Preloaded: a wall clock that is off by as many seconds as the file $CLOCK_OFFSET says now. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *now) {
  int result = syscall(SYS_clock_gettime, id, now);
  const char *path = getenv("CLOCK_OFFSET");
  FILE *file = id == CLOCK_REALTIME && path ? fopen(path, "r") : NULL;
  long offset = 0;
  if (file) {
    if (fscanf(file, "%ld", &offset) == 1) now->tv_sec += offset;
    fclose(file);
  }
  return result;
}
