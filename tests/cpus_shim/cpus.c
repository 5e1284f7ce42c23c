/* Preloaded into a process: it finds as many CPUs as TEST_CPUS says, whatever the machine has. Built by tests/worlds/bare_machine.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long cpus(void) {
  const char *told = getenv("TEST_CPUS");
  return told ? atol(told) : 1;
}

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set) {
  (void)pid;
  memset(set, 0, size);
  for (long cpu = 0; cpu < cpus(); cpu++) CPU_SET_S(cpu, size, set);
  return 0;
}

long sysconf(int name) {
  static long (*real)(int);
  if (name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF) return cpus();
  if (!real) real = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
  return real(name);
}
