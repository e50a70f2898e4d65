/*
 * The transmitter takes a byte at once, so the line status always says empty, and the
 * transmitter-empty interrupt is pending again after each byte while it is enabled. The
 * interrupt line is an edge: it is raised whenever the pending state is set anew.
 *
 * In loopback mode the modem status mirrors the modem control, which is how drivers recognise the
 * part; bytes written then go nowhere.
 */
#include "vmm/serial.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "vmm/bus.h"
#include "vmm/layout.h"

enum { REG_DATA, REG_IER, REG_IIR_FCR, REG_LCR, REG_MCR, REG_LSR, REG_MSR, REG_SCR, REGS };

enum {
	IER_THRI = 0x02,
	IER_MASK = 0x0f,
	IIR_NONE = 0x01,
	IIR_THRI = 0x02,
	IIR_FIFO = 0xc0,
	FCR_ENABLE = 0x01,
	LCR_DLAB = 0x80,
	MCR_LOOP = 0x10,
	MCR_MASK = 0x1f,
	LSR_THRE = 0x20,
	LSR_TEMT = 0x40,
	MSR_CTS = 0x10,
	MSR_DSR = 0x20,
	MSR_RI = 0x40,
	MSR_DCD = 0x80,
};

int serial_init(struct serial *s, size_t ring_bytes, struct err *e)
{
	memset(s, 0, sizeof(*s));
	s->irq_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (s->irq_fd < 0)
		return err_errno(e, errno, "serial interrupt");
	if (ring_init(&s->output, ring_bytes) < 0) {
		close_fd(&s->irq_fd);
		return err_errno(e, ENOMEM, "serial ring");
	}
	pthread_mutex_init(&s->lock, NULL);
	s->regs.dll = 0x0c; /* 9600 baud */
	s->ready = true;
	return 0;
}

void serial_destroy(struct serial *s)
{
	if (!s->ready)
		return;
	s->ready = false;
	ring_destroy(&s->output);
	close_fd(&s->irq_fd);
	pthread_mutex_destroy(&s->lock);
}

/* The transmitter became empty; tells the guest if it wants to know. */
static void transmitter_empty(struct serial *s)
{
	uint64_t one = 1;
	ssize_t full;

	if (!(s->regs.ier & IER_THRI))
		return;
	s->regs.thre_pending = true;
	full = write(s->irq_fd, &one, sizeof(one)); /* a full counter is a raised interrupt */
	(void)full;
}

void serial_resume(struct serial *s)
{
	pthread_mutex_lock(&s->lock);
	if (s->regs.thre_pending)
		transmitter_empty(s);
	pthread_mutex_unlock(&s->lock);
}

static uint8_t read_iir(struct serial *s)
{
	uint8_t fifo = s->regs.fcr & FCR_ENABLE ? IIR_FIFO : 0;

	if (!s->regs.thre_pending || !(s->regs.ier & IER_THRI))
		return fifo | IIR_NONE;
	s->regs.thre_pending = false;
	return fifo | IIR_THRI;
}

static uint8_t read_msr(const struct serial_regs *r)
{
	uint8_t v = 0;

	if (!(r->mcr & MCR_LOOP))
		return MSR_CTS | MSR_DSR | MSR_DCD;
	v |= r->mcr & 0x01 ? MSR_DSR : 0; /* DTR */
	v |= r->mcr & 0x02 ? MSR_CTS : 0; /* RTS */
	v |= r->mcr & 0x04 ? MSR_RI : 0;  /* OUT1 */
	v |= r->mcr & 0x08 ? MSR_DCD : 0; /* OUT2 */
	return v;
}

static uint8_t read_register(struct serial *s, uint64_t reg)
{
	struct serial_regs *r = &s->regs;
	bool dlab = r->lcr & LCR_DLAB;

	switch (reg) {
	case REG_DATA:
		return dlab ? r->dll : 0;
	case REG_IER:
		return dlab ? r->dlm : r->ier;
	case REG_IIR_FCR:
		return read_iir(s);
	case REG_LCR:
		return r->lcr;
	case REG_MCR:
		return r->mcr;
	case REG_LSR:
		return LSR_THRE | LSR_TEMT;
	case REG_MSR:
		return read_msr(r);
	default:
		return r->scr;
	}
}

static void write_data(struct serial *s, uint8_t v)
{
	if (s->regs.lcr & LCR_DLAB) {
		s->regs.dll = v;
		return;
	}
	if (!(s->regs.mcr & MCR_LOOP))
		ring_put(&s->output, &v, 1);
	s->regs.thre_pending = false;
	transmitter_empty(s);
}

static void write_ier(struct serial *s, uint8_t v)
{
	uint8_t old = s->regs.ier;

	if (s->regs.lcr & LCR_DLAB) {
		s->regs.dlm = v;
		return;
	}
	s->regs.ier = v & IER_MASK;
	if (!(old & IER_THRI))
		transmitter_empty(s);
}

static void write_register(struct serial *s, uint64_t reg, uint8_t v)
{
	switch (reg) {
	case REG_DATA:
		write_data(s, v);
		break;
	case REG_IER:
		write_ier(s, v);
		break;
	case REG_IIR_FCR:
		s->regs.fcr = v & FCR_ENABLE;
		break;
	case REG_LCR:
		s->regs.lcr = v;
		break;
	case REG_MCR:
		s->regs.mcr = v & MCR_MASK;
		break;
	case REG_SCR:
		s->regs.scr = v;
		break;
	default: /* line and modem status are read-only */
		break;
	}
}

/* The registers are bytes; a wider access is that many accesses in a row, as on a PC. */
static void serial_read(void *ctx, uint64_t offset, void *data, size_t len)
{
	struct serial *s = ctx;

	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < len; i++)
		((uint8_t *)data)[i] = read_register(s, offset + i);
	pthread_mutex_unlock(&s->lock);
}

static void serial_write(void *ctx, uint64_t offset, const void *data, size_t len)
{
	struct serial *s = ctx;

	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < len; i++)
		write_register(s, offset + i, ((const uint8_t *)data)[i]);
	pthread_mutex_unlock(&s->lock);
}

int serial_attach(struct serial *s, struct bus *ports, struct err *e)
{
	static const struct bus_ops ops = { serial_read, serial_write };

	return bus_add(ports, LAYOUT_SERIAL_PORT, REGS, &ops, s, e);
}
