/*
 * To be preloaded: moves the wall clock of a process and its children by as many ns as the file
 * WALL_CLOCK_AHEAD holds (int64) at each moment. Other clocks stay as they are.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static const volatile int64_t *ahead;

__attribute__((constructor)) static void find(void)
{
	int file = open(getenv("WALL_CLOCK_AHEAD"), O_RDONLY | O_CLOEXEC);
	void *found = mmap(NULL, sizeof(*ahead), PROT_READ, MAP_SHARED, file, 0);

	close(file);
	if (found == MAP_FAILED)
		abort();
	ahead = found;
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
	int64_t ns;

	if (syscall(SYS_clock_gettime, clock, at))
		return -1;
	if (ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
		ns = at->tv_sec * SECOND + at->tv_nsec + *ahead;
		at->tv_sec = ns / SECOND;
		at->tv_nsec = ns % SECOND;
	}
	return 0;
}

int gettimeofday(struct timeval *at, void *zone)
{
	struct timespec now;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &now);
	at->tv_sec = now.tv_sec;
	at->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *at)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (at)
		*at = now.tv_sec;
	return now.tv_sec;
}
