/* The parts of image building that read or write bytes: kernel, cpio, modules, apt sources, npm. */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <lz4.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "image/aptsrc.h"
#include "image/bzimage.h"
#include "image/cpio.h"
#include "image/modules.h"
#include "image/npm.h"
#include "image/recipe.h"
#include "image/store.h"
#include "image/tree.h"

static void put32(uint8_t *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(v >> 8 * i);
}

/* ---- kernel ---- */

/* An ELF of n bytes whose one note is of the given type. */
static uint8_t *make_elf(size_t n, uint32_t note_type)
{
	uint8_t *p = calloc(1, n);
	Elf64_Ehdr h = { .e_machine = EM_X86_64,
			 .e_phoff = sizeof(h),
			 .e_phentsize = sizeof(Elf64_Phdr),
			 .e_phnum = 1 };
	Elf64_Phdr ph = { .p_type = PT_NOTE, .p_offset = 200, .p_filesz = 20 };
	Elf64_Nhdr note = { .n_namesz = 4, .n_descsz = 4, .n_type = note_type };

	memcpy(h.e_ident, ELFMAG, SELFMAG);
	h.e_ident[EI_CLASS] = ELFCLASS64;
	memcpy(p, &h, sizeof(h));
	memcpy(p + sizeof(h), &ph, sizeof(ph));
	memcpy(p + 200, &note, sizeof(note));
	memcpy(p + 212, "Xen", 4);
	for (size_t i = 300; i < n; i++)
		p[i] = (uint8_t)(i * 2654435761u >> 13);
	return p;
}

/* A bzImage around an LZ4 legacy frame of the kernel, in blocks of 8 MiB. */
static uint8_t *make_bzimage(const uint8_t *kernel, size_t n, size_t *size)
{
	size_t bound = (size_t)LZ4_compressBound((int)n) + 64, at = 4, off = 1024 + 16;
	uint8_t *img = calloc(1, off + bound);
	uint8_t *pay = img + off;

	put32(pay, 0x184c2102);
	for (size_t done = 0; done < n;) {
		size_t block = n - done < (8 << 20) ? n - done : 8 << 20;
		int packed = LZ4_compress_default((const char *)kernel + done, (char *)pay + at + 4,
						  (int)block, (int)(bound - at - 4));

		assert_true(packed > 0);
		put32(pay + at, (uint32_t)packed);
		at += 4 + (size_t)packed;
		done += block;
	}
	put32(pay + at, (uint32_t)n);
	img[0x1f1] = 1;
	memcpy(img + 0x202, "HdrS", 4);
	img[0x206] = 0x0f;
	img[0x207] = 0x02;
	put32(img + 0x248, 16);
	put32(img + 0x24c, (uint32_t)at + 4);
	*size = off + at + 4;
	return img;
}

static void kernel_is_unpacked(void **state)
{
	static const size_t sizes[] = { 4096, 8 << 20, (8 << 20) + 1, (19 << 20) + 7 };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		_cleanup_buf_ struct buf out = { 0 };
		struct err e = { 0 };
		size_t n;
		uint8_t *elf = make_elf(sizes[i], 18), *img = make_bzimage(elf, sizes[i], &n);

		assert_int_equal(bzimage_extract(img, n, &out, &e), 0);
		assert_int_equal(out.len, sizes[i]);
		assert_memory_equal(out.data, elf, sizes[i]);
		free(elf);
		free(img);
	}
}

static void bad_kernels_are_refused(void **state)
{
	_cleanup_buf_ struct buf out = { 0 };
	struct err e = { 0 };
	size_t n, size = 100000;
	uint8_t *elf = make_elf(size, 18), *img = make_bzimage(elf, size, &n);
	uint8_t *other = make_elf(size, 17), *no_pvh = make_bzimage(other, size, &n);

	(void)state;
	assert_true(bzimage_extract(no_pvh, n, &out, &e) < 0);
	assert_string_equal(e.code, "bad_kernel");
	assert_non_null(strstr(e.msg, "PVH"));
	img = (free(img), make_bzimage(elf, size, &n));
	/* Every cut: an error, and nothing is left in the buffer. (ASan watches the reads.) */
	for (size_t cut = 0; cut < n; cut += cut < 1100 ? 1 : 997) {
		uint8_t *copy = malloc(cut ? cut : 1);

		memcpy(copy, img, cut);
		assert_true(bzimage_extract(copy, cut, &out, &e) < 0);
		assert_int_equal(out.len, 0);
		free(copy);
	}
	put32(img + 0x24c, 0xffffffff);
	assert_true(bzimage_extract(img, n, &out, &e) < 0);
	put32(img + 0x24c, 8);
	assert_true(bzimage_extract(img, n, &out, &e) < 0);
	img = (free(img), make_bzimage(elf, size, &n));
	put32(img + n - 4, 0x7fffffff); /* an unpacked size of 2 GiB */
	assert_true(bzimage_extract(img, n, &out, &e) < 0);
	put32(img + n - 4, (uint32_t)size + 1);
	assert_true(bzimage_extract(img, n, &out, &e) < 0);
	put32(img + n - 4, (uint32_t)size - 1);
	assert_true(bzimage_extract(img, n, &out, &e) < 0);
	free(elf);
	free(other);
	free(img);
	free(no_pvh);
}

/* ---- cpio ---- */

static void cpio_has_its_format(void **state)
{
	_cleanup_buf_ struct buf b = { 0 };

	(void)state;
	assert_int_equal(cpio_add_dir(&b, "lib"), 0);
	assert_int_equal(b.len, 116); /* 110 + "lib\0" = 114, padded to 4 */
	assert_memory_equal(b.data, "070701", 6);
	assert_memory_equal(b.data + 14, "000041ED", 8); /* a folder, 0755 */
	assert_int_equal(cpio_add_file(&b, "lib/a", 0644, "hello", 5), 0);
	assert_memory_equal(b.data + 116 + 14, "000081A4", 8);
	assert_memory_equal(b.data + 116 + 54, "00000005", 8); /* size */
	assert_memory_equal(b.data + 116 + 94, "00000006", 8); /* name with its NUL */
	assert_string_equal(b.data + 116 + 110, "lib/a");
	assert_memory_equal(b.data + 116 + 116, "hello\0\0\0", 8);
	assert_int_equal(b.len, 116 + 116 + 8);
	assert_int_equal(cpio_end(&b), 0);
	assert_int_equal(b.len % 512, 0);
	assert_int_equal(cpio_add_file(&b, "/abs", 0644, "", 0), -EINVAL);
	assert_int_equal(cpio_add_file(&b, "", 0644, "", 0), -EINVAL);
}

/* ---- modules ---- */

static const char dep[] =
	"kernel/drivers/virtio/virtio.ko: kernel/drivers/virtio/virtio_ring.ko\n"
	"kernel/drivers/virtio/virtio_ring.ko:\n"
	"kernel/drivers/char/hw_random/virtio-rng.ko: "
	"kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio_ring.ko\n"
	"kernel/fs/ext4/ext4.ko.xz: kernel/lib/crc16.ko.xz kernel/fs/mbcache.ko.xz "
	"kernel/fs/jbd2/jbd2.ko.xz\n"
	"kernel/lib/crc16.ko.xz:\nkernel/fs/mbcache.ko.xz:\n"
	"kernel/fs/jbd2/jbd2.ko.xz:\n";

static void modules_are_ordered(void **state)
{
	static const char *const want[] = { "virtio_rng", "loop", "ext4", "?absent", "virtio" };
	static const char *const missing[] = { "nothing" };
	_cleanup_buf_ struct buf order = { 0 };
	struct err e = { 0 };

	(void)state;
	assert_int_equal(modules_order(dep, "kernel/drivers/block/loop.ko\n", want,
				       ARRAY_SIZE(want), &order, &e),
			 0);
	assert_string_equal(order.data, "kernel/drivers/virtio/virtio_ring.ko\n"
					"kernel/drivers/virtio/virtio.ko\n"
					"kernel/drivers/char/hw_random/virtio-rng.ko\n"
					"kernel/fs/jbd2/jbd2.ko.xz\n"
					"kernel/fs/mbcache.ko.xz\n"
					"kernel/lib/crc16.ko.xz\n"
					"kernel/fs/ext4/ext4.ko.xz\n");
	assert_int_equal(modules_order(dep, "", missing, 1, &order, &e), -ENOENT);
	assert_string_equal(e.code, "no_module");
	assert_non_null(strstr(e.msg, "nothing"));
}

/* ---- apt sources ---- */

static void one_line_sources(void **state)
{
	static const char text[] =
		"# deb http://old.example bookworm main\n"
		"deb [arch=amd64 signed-by=/k/a.gpg trusted=yes] http://a.example/debian bookworm "
		"main contrib\n"
		"deb-src http://a.example/debian bookworm main\n"
		"deb http://s.example/debian-security bookworm-security main # comment\n"
		"deb http://a.example/debian bookworm-backports main\n"
		"deb http://a.example/debian bookworm contrib\n"
		"deb http://other.example stable main\n"
		"deb [broken http://x.example bookworm main\n"
		"deb";
	_cleanup_buf_ struct buf out = { 0 };

	(void)state;
	assert_int_equal(aptsrc_convert(text, 0, "bookworm", "bookworm", "main", &out), 2);
	assert_string_equal(out.data,
			    "Types: deb\nURIs: http://a.example/debian\nSuites: bookworm\n"
			    "Components: main\nSigned-By: /k/a.gpg\nTrusted: yes\n\n"
			    "Types: deb\nURIs: http://s.example/debian-security\n"
			    "Suites: bookworm-security\nComponents: main\n\n");
}

static void deb822_sources(void **state)
{
	static const char text[] = "Types: deb deb-src\n"
				   "# a comment inside\n"
				   "URIs: http://a.example/debian\n"
				   "Suites: trixie\n trixie-updates trixie-backports\n"
				   "Components: main universe\n"
				   "Signed-By:\n -----BEGIN\n .\n abc\n"
				   "\n"
				   "Types: deb\nEnabled: no\nURIs: http://b.example\n"
				   "Suites: trixie\nComponents: main\n"
				   " \n"
				   "types: deb\nuris: http://c.example\nsuites: trixie-security\n"
				   "components: main\nCheck-Valid-Until: no";
	_cleanup_buf_ struct buf out = { 0 };

	(void)state;
	assert_int_equal(aptsrc_convert(text, 1, "trixie", "bookworm", "main universe", &out), 2);
	assert_string_equal(out.data,
			    "Types: deb\nURIs: http://a.example/debian\n"
			    "Suites: bookworm bookworm-updates\nComponents: main universe\n"
			    "Signed-By:\n -----BEGIN\n .\n abc\n\n"
			    "Types: deb\nURIs: http://c.example\nSuites: bookworm-security\n"
			    "Components: main\nCheck-Valid-Until: no\n\n");
}

static void no_source_is_an_error(void **state)
{
	_cleanup_buf_ struct buf out = { 0 };
	char dir[] = "/tmp/cloche-test-XXXXXX";
	struct err e = { 0 };

	(void)state;
	assert_non_null(mkdtemp(dir));
	assert_int_equal(aptsrc_host(dir, "bookworm", "bookworm", "main", &out, &e), -ENOENT);
	assert_string_equal(e.code, "no_mirror");
	assert_non_null(strstr(e.fix, "--mirror"));
	assert_int_equal(aptsrc_mirror("http://m.example/debian\nTrusted: yes", NULL, "bookworm",
				       "main", &out, &e),
			 -EINVAL);
	assert_string_equal(e.code, "bad_mirror");
	assert_int_equal(out.len, 0);
	tree_remove(dir);
}

static void os_release_is_read(void **state)
{
	static const char text[] =
		"PRETTY_NAME=\"Debian GNU/Linux 12\"\nID=debian\nVERSION_CODENAME='bookworm'";
	char *id = aptsrc_os_release(text, "ID"),
	     *name = aptsrc_os_release(text, "VERSION_CODENAME");

	(void)state;
	assert_string_equal(id, "debian");
	assert_string_equal(name, "bookworm");
	assert_null(aptsrc_os_release(text, "NAME"));
	free(id);
	free(name);
}

/* ---- npm ---- */

static void npm_picks_the_newest_of_a_major(void **state)
{
	_cleanup_json_ json_t *doc = json_pack(
		"{s:s,s:{s:{s:{s:s,s:s}},s:{s:{s:s,s:s}},s:{s:{s:s,s:s}},s:{s:{s:s,s:s}},s:{s:{s:s}"
		"}}}",
		"name", "node", "versions", "24.9.0", "dist", "tarball", "t9", "integrity", "i9",
		"24.10.1", "dist", "tarball", "t10", "integrity", "i10", "24.11.0-rc.1", "dist",
		"tarball", "rc", "integrity", "rc", "26.0.0", "dist", "tarball", "t26", "integrity",
		"i26", "24.99.0", "dist", "tarball", "without");
	const char *version, *tarball, *integrity;
	struct err e = { 0 };

	(void)state;
	assert_non_null(doc);
	assert_int_equal(npm_pick(doc, 24, &version, &tarball, &integrity, &e), 0);
	assert_string_equal(version, "24.10.1");
	assert_string_equal(tarball, "t10");
	assert_int_equal(npm_pick(doc, 0, &version, &tarball, &integrity, &e), 0);
	assert_string_equal(version, "26.0.0");
	assert_true(npm_pick(doc, 25, &version, &tarball, &integrity, &e) < 0);
	assert_string_equal(e.code, "no_npm_version");
}

static void npm_digests_are_checked(void **state)
{
	/* printf abc | openssl dgst -sha512 -binary | base64 */
	static const char good[] = "sha1-xyz sha512-3a81oZNherrMQXNJriBBMRLm+k6JqX6iCp7u5ktV05oh"
				   "kpkqJ0/BqDa6PCOj/uu9RU1EI2Q86A4qmslPpUyknw==";

	(void)state;
	assert_int_equal(npm_verify("abc", 3, good), 0);
	assert_true(npm_verify("abd", 3, good) < 0);
	assert_true(npm_verify("abc", 3, "sha1-qZk+NkcGgWq6PiVxeFDCbJzQ2J0=") < 0);
	assert_true(npm_verify("abc", 3, "sha512-") < 0);
}

/* ---- recipes and images ---- */

static void recipes_are_strict(void **state)
{
	static const char *const bad[] = {
		"{\"schema\":1}",
		"{\"schema\":1,\"name\":\"r\",\"distribution\":\"d\",\"release\":\"r\","
		"\"components\":\"m\","
		"\"packages\":[\"--option\"],\"hooks\":[],\"slackMiB\":64,\"needMiB\":64}",
		"{\"schema\":1,\"name\":\"r\",\"distribution\":\"d\",\"release\":\"r\","
		"\"components\":\"m\","
		"\"packages\":[],\"hooks\":[\"../x\"],\"slackMiB\":64,\"needMiB\":64}",
		"{\"schema\":1,\"name\":\"r\",\"distribution\":\"d\",\"release\":\"r\","
		"\"components\":\"m\","
		"\"packages\":[],\"hooks\":[],\"slackMiB\":64,\"needMiB\":64,\"pakages\":[]}",
	};
	char dir[] = "/tmp/cloche-test-XXXXXX", path[64];
	struct recipe r;
	struct err e = { 0 };

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/r", dir);
	assert_int_equal(mkdir(path, 0755), 0);
	snprintf(path, sizeof(path), "%s/r/recipe.json", dir);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		assert_int_equal(fd_write_file_atomic(path, bad[i], strlen(bad[i]), 0644, &e), 0);
		assert_true(recipe_load(dir, "r", &r, &e) < 0);
		assert_string_equal(e.code, "bad_recipe");
	}
	assert_true(recipe_load(dir, "s", &r, &e) < 0);
	assert_string_equal(e.code, "unknown_recipe");
	assert_non_null(strstr(e.fix, "r"));
	assert_true(recipe_load(dir, "../r", &r, &e) < 0);
	assert_string_equal(e.code, "unknown_recipe");
	tree_remove(dir);
}

static int count(void *ctx, const struct image_manifest *m)
{
	(void)m;
	++*(int *)ctx;
	return 0;
}

static void write_file(const char *dir, const char *name, const char *text)
{
	char path[PATH_MAX];
	struct err e = { 0 };

	path_printf(path, "%s/%s", dir, name);
	assert_int_equal(fd_write_file_atomic(path, text, strlen(text), 0644, &e), 0);
}

static void images_are_whole_or_absent(void **state)
{
	struct image_manifest m = { .name = "base",
				    .created_at = "2026-01-01T00:00:00.000Z",
				    .recipe = "base",
				    .distribution = "debian",
				    .release = "bookworm",
				    .kernel_version = "6.1",
				    .files = { { .name = "disk.raw" },
					       { .name = "vmlinux" },
					       { .name = "initrd" } } },
			      got;
	char top[] = "/tmp/cloche-test-XXXXXX", from[PATH_MAX], images[PATH_MAX];
	struct err e = { 0 };
	int n = 0;

	(void)state;
	assert_non_null(mkdtemp(top));
	path_printf(from, "%s/from", top);
	path_printf(images, "%s/images", top);
	assert_int_equal(tree_mkdirs(from, &e), 0);
	write_file(from, "disk.raw", "disk");
	write_file(from, "vmlinux", "kernel");
	write_file(from, "initrd", "initrd");
	assert_int_equal(image_import(from, images, NULL, &e), -ENOENT); /* no manifest yet */
	assert_int_equal(manifest_measure(from, &m, &e), 0);
	assert_int_equal(manifest_save(from, &m, &e), 0);
	assert_int_equal(image_import(from, images, NULL, &e), 0);
	assert_int_equal(image_import(from, images, "other", &e), 0);
	assert_int_equal(image_import(from, images, "base", &e), 0); /* replaces */
	assert_int_equal(image_list(images, count, &n, &e), 2);
	assert_int_equal(n, 2);
	assert_int_equal(image_load(images, "other", &got, &e), 0);
	assert_string_equal(got.name, "other");
	assert_int_equal(got.files[IMAGE_KERNEL].bytes, 6);

	/* A byte that differs: the import fails and leaves what was there. */
	write_file(from, "vmlinux", "Kernel");
	assert_int_equal(image_import(from, images, "base", &e), -EINVAL);
	assert_string_equal(e.code, "image_damaged");
	assert_non_null(strstr(e.msg, "vmlinux"));
	assert_int_equal(image_load(images, "base", &got, &e), 0);
	write_file(from, "vmlinux", "kern");
	assert_int_equal(manifest_load(from, &got, &e), -EINVAL);

	assert_int_equal(image_import(from, images, "../x", &e), -EINVAL);
	assert_int_equal(image_remove(images, "base", &e), 0);
	assert_int_equal(image_load(images, "base", &got, &e), -ENOENT);
	assert_string_equal(e.code, "image_not_found");
	assert_int_equal(image_remove(images, "base", &e), -ENOENT);
	tree_remove(top);
}

static void copies_keep_holes(void **state)
{
	char dir[] = "/tmp/cloche-test-XXXXXX", a[PATH_MAX], b[PATH_MAX], tail[4];
	struct err e = { 0 };
	struct stat st;
	int fd;

	(void)state;
	assert_non_null(mkdtemp(dir));
	path_printf(a, "%s/a", dir);
	path_printf(b, "%s/b", dir);
	fd = open(a, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(pwrite(fd, "head", 4, 0), 4);
	assert_int_equal(pwrite(fd, "tail", 4, 100 << 20), 4);
	assert_int_equal(ftruncate(fd, (100 << 20) + 5000), 0);
	close(fd);
	assert_int_equal(tree_copy_file(a, b, &e), 0);
	assert_int_equal(stat(b, &st), 0);
	assert_int_equal(st.st_size, (100 << 20) + 5000);
	assert_true(st.st_blocks * 512 < 1 << 20);
	fd = open(b, O_RDONLY | O_CLOEXEC);
	assert_int_equal(pread(fd, tail, 4, 100 << 20), 4);
	assert_memory_equal(tail, "tail", 4);
	close(fd);
	tree_remove(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kernel_is_unpacked),
		cmocka_unit_test(bad_kernels_are_refused),
		cmocka_unit_test(cpio_has_its_format),
		cmocka_unit_test(modules_are_ordered),
		cmocka_unit_test(one_line_sources),
		cmocka_unit_test(deb822_sources),
		cmocka_unit_test(no_source_is_an_error),
		cmocka_unit_test(os_release_is_read),
		cmocka_unit_test(npm_picks_the_newest_of_a_major),
		cmocka_unit_test(npm_digests_are_checked),
		cmocka_unit_test(recipes_are_strict),
		cmocka_unit_test(images_are_whole_or_absent),
		cmocka_unit_test(copies_keep_holes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
