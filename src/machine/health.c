/* One HTTP/1.0 request over a socket with time limits: no need for a client library here. */
#include "machine/health.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/fd.h"

static struct sockaddr_in loopback(uint16_t port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET,
				     .sin_port = htons(port),
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

bool health_ok(uint16_t port, unsigned timeout_ms)
{
	static const char request[] = "GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n";
	_cleanup_close_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct timeval tv = { timeout_ms / 1000, (int)(timeout_ms % 1000) * 1000 };
	struct sockaddr_in a = loopback(port);
	char answer[13] = "";

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)) < 0 ||
	    connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0 ||
	    send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) < 0)
		return false;
	return fd_read_full(fd, answer, 12) == 12 && memcmp(answer, "HTTP/1.", 7) == 0 &&
	       memcmp(answer + 8, " 200", 4) == 0;
}

bool health_port_taken(uint16_t port)
{
	_cleanup_close_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in a = loopback(port);
	int one = 1;

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0)
		return true;
	return bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0;
}
