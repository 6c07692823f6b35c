"""The wall that carries the load: which package may import which."""

import ast
import graphlib
import pathlib
import sys

from absl.testing import absltest, parameterized

ROOT = pathlib.Path(__file__).resolve().parent.parent
OURS = ('data', 'transformer', 'vit', 'training', 'configs', 'display', 'benchmarks', 'train', 'eval', 'predict', 'convert',
        'sweep')
ALLOWED = {'display': set(), 'data': {'display'}, 'transformer': {'display'}, 'vit': {'transformer', 'display'},
           'training': {'display'}, 'configs': {'training', 'display'}}
SCRIPTS = 'data/show.py',  # a room's files that are scripts too: what they import as __main__ is free, as that of scripts is
FILES = {path.relative_to(ROOT).as_posix(): path for package in (*ALLOWED, 'benchmarks')
         for path in sorted((ROOT / package).rglob('*.py'))} | {p.name: p for p in ROOT.glob('*.py')}


def imported(file, *, anywhere=True):
    """Names of the modules that a file imports, at module level alone or in its functions too."""
    def visit(node):
        for child in ast.iter_child_nodes(node):
            if file in SCRIPTS and isinstance(child, ast.If) and ast.unparse(child.test) == "__name__ == '__main__'":
                continue
            if isinstance(child, ast.Import):
                yield from (alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                yield from [child.module] + [f'{child.module}.{alias.name}' for alias in child.names]
            elif anywhere or not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                yield from visit(child)
    return set(visit(ast.parse(FILES[file].read_text())))


def roots(file, **options):
    return {name.partition('.')[0] for name in imported(file, **options)}


class ImportsTest(parameterized.TestCase):
    def test_every_package_is_looked_at(self):
        for package in ALLOWED:
            self.assertTrue(any(file.startswith(f'{package}/') for file in FILES), package)

    @parameterized.parameters(*ALLOWED)
    def test_direction(self, package):
        for file in FILES:
            if file.startswith(f'{package}/'):
                self.assertLessEqual(roots(file) & set(OURS), ALLOWED[package] | {package}, file)

    def test_modules_do_not_import_in_circles(self):
        modules = {file.removesuffix('.py').removesuffix('/__init__').replace('/', '.'): file for file in FILES}
        graph = {module: imported(file) & set(modules) - {module} for module, file in modules.items()}
        self.assertNotEmpty(list(graphlib.TopologicalSorter(graph).static_order()))  # raises CycleError

    def test_only_models_and_the_state_know_flax(self):
        for file in FILES:
            if not file.startswith(('transformer/', 'vit/')) and file != 'training/state.py':
                self.assertNotIn('flax', roots(file), file)

    def test_models_need_jax_and_flax_alone(self):
        known = {'jax', 'flax', 'numpy', 'transformer', 'vit', 'display'} | set(sys.stdlib_module_names)
        for file in FILES:
            if file.startswith(('transformer/', 'vit/')):
                self.assertLessEqual(roots(file, anywhere=False), known, file)

    def test_display_is_light_to_import(self):
        for file in FILES:
            if file.startswith('display/'):
                self.assertLessEqual(roots(file, anywhere=False), {'display'} | set(sys.stdlib_module_names), file)

    def test_data_works_without_jax(self):
        for file in FILES:
            if file.startswith(('data/', 'display/')):
                self.assertTrue(roots(file).isdisjoint({'jax', 'flax', 'optax', 'orbax'}), file)

    def test_no_other_framework(self):
        for file in FILES:
            names = roots(file)
            self.assertTrue(names.isdisjoint({'tensorflow', 'torch', 'keras'}), file)
            hugging_face = {'transformers', 'datasets'} & names
            self.assertFalse(hugging_face, file)

    def test_imports_are_absolute(self):
        for file, path in FILES.items():
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom):
                    self.assertEqual(node.level, 0, file)


if __name__ == '__main__':
    absltest.main()
