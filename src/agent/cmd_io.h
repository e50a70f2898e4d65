/* The three descriptors of a command and our ends of them: pipes, or one terminal. */
#ifndef CLOCHE_AGENT_CMD_IO_H
#define CLOCHE_AGENT_CMD_IO_H

#include <jansson.h>
#include <stdbool.h>

struct err;
struct process;
struct user;

struct cmd_io {
	int child[3];
	int in, out[2]; /* ours; -1: none */
};

#define CMD_IO_NONE                 \
	{                           \
		{ -1, -1, -1 }, -1, \
		{                   \
			-1, -1      \
		}                   \
	}

/* Makes them for an exec request; a terminal belongs to u. */
int cmd_io_make(const json_t *request, const struct user *u, bool with_input, struct cmd_io *io,
		struct err *e);
/* Gives our ends to p, which watches them. */
int cmd_io_attach(struct cmd_io *io, struct process *p, struct err *e);
void cmd_io_close_child(struct cmd_io *io);
void cmd_io_close(struct cmd_io *io);

#endif
